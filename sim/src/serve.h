#pragma once

#include <functional>
#include <string>

namespace bentpipe
{

/// Runs links one after another, each in a child process. It reads lines from stdin: a document (JSON in one line) starts a link,
/// and the line "stop" ends the link as SIGTERM does. After each link it prints "link ended with CODE" on stderr. It returns at the
/// end of stdin or on SIGTERM, after the link has ended. In the child process, `run` gets the document and returns the exit code.
/// Throws UserError when a document comes while a link runs, and std::system_error.
void Serve(const std::function<int(const std::string&)>& run);

}  // namespace bentpipe
