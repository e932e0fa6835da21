#pragma once

#include <functional>
#include <string>

namespace bentpipe
{

/// Runs links one after the other, each in a child process, as the lines of stdin say: a document (JSON, one line) starts
/// a link, the line "stop" ends it as SIGTERM does. "link ended with CODE" on stderr follows each. Returns when stdin or
/// SIGTERM ends, after the link. `run` gets the document in the child and returns its exit code. Throws UserError for a
/// document while a link runs, and std::system_error.
void Serve(const std::function<int(const std::string&)>& run);

}  // namespace bentpipe
