#include "stop_signal.h"

#include <cerrno>
#include <csignal>
#include <system_error>
#include <utility>

#include <sys/signalfd.h>
#include <unistd.h>

namespace bentpipe
{

StopSignal::StopSignal()
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    fd_ = signalfd(-1, &set, SFD_CLOEXEC);
    if (fd_ < 0)
    {
        throw std::system_error(errno, std::generic_category(), "signalfd");
    }
}

StopSignal::~StopSignal()
{
    close(fd_);
}

void
StopSignal::Watch(EventLoop& loop, std::function<void()> stop)
{
    loop.Watch(fd_, [this, &loop, stop = std::move(stop)] {
        loop.Forget(fd_);
        stop();
    });
}

}  // namespace bentpipe
