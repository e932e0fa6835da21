#include "stop_signal.h"

#include <utility>

#include <pthread.h>

namespace bentpipe
{

StopSignal::StopSignal()
{
    sigemptyset(&set_);
    sigaddset(&set_, SIGTERM);
    sigaddset(&set_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set_, nullptr);
}

StopSignal::~StopSignal()
{
    if (thread_.joinable())
    {
        pthread_kill(thread_.native_handle(), SIGTERM);  // has no effect when a signal has already arrived
        thread_.join();
    }
}

void
StopSignal::Watch(std::function<void()> stop)
{
    thread_ = std::thread([this, stop = std::move(stop)] {
        int signal = 0;
        sigwait(&set_, &signal);
        stop();
    });
}

}  // namespace bentpipe
