// Which file of the administrator Firefox reads when it starts, and that it may use all of Firefox.
pref("general.config.filename", "bentpipe.cfg");
pref("general.config.obscure_value", 0);
pref("general.config.sandbox_enabled", false);
