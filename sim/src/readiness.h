#pragma once

#include "event_loop.h"

#include <cstdint>

namespace bentpipe
{

/// Accepts and closes TCP connections on all IPv4 and IPv6 addresses when the path is open. Before that, connections are refused.
class Readiness
{
  public:
    /// Binds the port; throws UserError.
    explicit Readiness(uint16_t port);
    ~Readiness();
    Readiness(const Readiness&) = delete;
    Readiness& operator=(const Readiness&) = delete;

    void Open(EventLoop& loop);

  private:
    int fd_;
};

}  // namespace bentpipe
