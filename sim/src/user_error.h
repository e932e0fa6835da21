#pragma once

#include <stdexcept>

namespace bentpipe
{

/// An error that the caller must fix: a bad field, a missing interface, a wrong sysctl. The text is one sentence that names the fix.
class UserError : public std::runtime_error
{
  public:
    using std::runtime_error::runtime_error;
};

}  // namespace bentpipe
