#pragma once

#include <csignal>
#include <functional>
#include <thread>

namespace bentpipe
{

/// Turns SIGTERM and SIGINT into a call from an ordinary thread. This also works in process 1 of a container.
class StopSignal
{
  public:
    /// Blocks the signals in this thread and in all threads that it starts later, so call this before any thread starts.
    StopSignal();
    ~StopSignal();
    StopSignal(const StopSignal&) = delete;
    StopSignal& operator=(const StopSignal&) = delete;

    /// Calls `stop` once, when the first signal arrives.
    void Watch(std::function<void()> stop);

  private:
    sigset_t set_;
    std::thread thread_;
};

}  // namespace bentpipe
