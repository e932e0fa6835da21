#pragma once

#include "event_loop.h"

#include <functional>

namespace bentpipe
{

/// Turns SIGTERM and SIGINT into a call from the event loop. This also works in process 1 of a container.
class StopSignal
{
  public:
    /// Blocks the signals, also for processes that are started later. Throws std::system_error.
    StopSignal();
    ~StopSignal();
    StopSignal(const StopSignal&) = delete;
    StopSignal& operator=(const StopSignal&) = delete;

    /// Calls `stop` once, when the first signal arrives.
    void Watch(EventLoop& loop, std::function<void()> stop);

  private:
    int fd_;
};

}  // namespace bentpipe
