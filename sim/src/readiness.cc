#include "readiness.h"

#include "user_error.h"

#include <cerrno>
#include <cstring>
#include <string>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace bentpipe
{

namespace
{

constexpr int kBacklog = 16;

[[noreturn]] void
Fail(int fd, uint16_t port)
{
    const std::string reason = std::strerror(errno);
    close(fd);
    throw UserError("The readiness port " + std::to_string(port) + " can't be opened: " + reason + "; choose another ready_port.");
}

}  // namespace

Readiness::Readiness(uint16_t port)
    : fd_(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))
{
    const int off = 0;
    const int on = 1;
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(port);
    if (fd_ < 0 || setsockopt(fd_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) != 0 ||
        setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    {
        Fail(fd_, port);
    }
}

Readiness::~Readiness()
{
    close(fd_);
}

void
Readiness::Open(EventLoop& loop)
{
    if (listen(fd_, kBacklog) != 0)
    {
        return;
    }
    loop.Watch(fd_, [this] {
        const int connection = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
        if (connection >= 0)
        {
            close(connection);
        }
    });
}

}  // namespace bentpipe
