#pragma once

#include <functional>
#include <string>
#include <vector>

namespace bentpipe
{

/// Runs links one after the other, each in a child process, as whoever writes to stdin says: an array of arguments
/// (JSON, one line) starts one, the line "stop" ends it as SIGTERM does. "link ended with CODE" on stderr follows each.
/// Returns when stdin or SIGTERM ends, after the link. `run` gets the arguments in the child and returns its exit code.
/// Throws UserError for a line that is neither, and std::system_error.
void Serve(const std::function<int(const std::vector<std::string>&)>& run);

}  // namespace bentpipe
