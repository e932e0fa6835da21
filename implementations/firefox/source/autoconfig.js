// The administrator's file that Firefox reads when it starts. Without the sandbox, this file may use all of Firefox.
pref("general.config.filename", "bentpipe.cfg");
pref("general.config.obscure_value", 0);
pref("general.config.sandbox_enabled", false);
