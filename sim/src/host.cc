#include "host.h"

#include "user_error.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <unistd.h>

namespace bentpipe
{

namespace
{

void
RequireNoForwarding(const std::string& family, const std::string& interface)
{
    std::ifstream file("/proc/sys/net/" + family + "/conf/" + interface + "/forwarding");
    int forwarding = 0;
    if (file >> forwarding && forwarding != 0)
    {
        // A forwarding kernel would carry each packet a second time, beside the link (RTT 0.06 ms and duplicates).
        throw UserError("The kernel forwards on " + interface + "; set net." + family + ".conf." + interface +
                        ".forwarding=0 in the simulator's network namespace.");
    }
}

/// The longest wake-up time of a CPU that the link tolerates, in microseconds. In a virtual machine a halted CPU must wait for the
/// host, so it may not halt at all. On other hosts a CPU may sleep as deep as C1.
int32_t
BearableWakeUp()
{
    std::ifstream file("/sys/devices/system/cpu/cpuidle/current_driver");
    std::string driver;
    file >> driver;
    return driver == "haltpoll" ? 0 : 2;  // microseconds
}

std::optional<std::string>
KeepCpusAwake()
{
    const int fd = open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
    {
        return std::strerror(errno);
    }
    const int32_t wake_up = BearableWakeUp();
    // The request is valid while the descriptor is open. The end of the process closes the descriptor.
    return write(fd, &wake_up, sizeof(wake_up)) == sizeof(wake_up) ? std::nullopt : std::make_optional(std::strerror(errno));
}

}  // namespace

Interface
FindInterface(const std::string& name)
{
    Interface interface;
    interface.name = name;
    interface.index = static_cast<int>(if_nametoindex(name.c_str()));
    if (interface.index == 0)
    {
        throw UserError("There is no network interface '" + name + "' here; wire the lane before starting the link.");
    }
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq flags{};
    ifreq mtu{};
    std::strncpy(flags.ifr_name, name.c_str(), IFNAMSIZ - 1);
    std::strncpy(mtu.ifr_name, name.c_str(), IFNAMSIZ - 1);
    const bool read = ioctl(fd, SIOCGIFFLAGS, &flags) == 0 && ioctl(fd, SIOCGIFMTU, &mtu) == 0;
    close(fd);
    if (!read || (flags.ifr_flags & IFF_UP) == 0)
    {
        throw UserError("The network interface '" + name + "' is down; set it up before starting the link.");
    }
    if (mtu.ifr_mtu < 68 || mtu.ifr_mtu > 9000)
    {
        throw UserError("The MTU of '" + name + "' is " + std::to_string(mtu.ifr_mtu) + " bytes; set it to 1500.");
    }
    interface.mtu = static_cast<uint16_t>(mtu.ifr_mtu);
    RequireNoForwarding("ipv4", name);
    RequireNoForwarding("ipv6", name);
    return interface;
}

OwnAddresses
ListOwnAddresses()
{
    OwnAddresses own;
    ifaddrs* list = nullptr;
    if (getifaddrs(&list) != 0)
    {
        throw UserError(std::string("The addresses of this network namespace can't be listed: ") + std::strerror(errno) + ".");
    }
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next)
    {
        if (entry->ifa_addr == nullptr)
        {
            continue;
        }
        if (entry->ifa_addr->sa_family == AF_INET)
        {
            own.v4.push_back(reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr);
        }
        else if (entry->ifa_addr->sa_family == AF_INET6)
        {
            own.v6.push_back(reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr);
        }
    }
    freeifaddrs(list);
    return own;
}

void
PrepareScheduling()
{
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    sched_attr attributes = {};
    attributes.size = sizeof(attributes);
    attributes.sched_policy = SCHED_OTHER;
    attributes.sched_nice = -20;
    // From Linux 6.12 on, a thread with a shorter time slice that wakes up doesn't wait for the end of another thread's slice
    // (sched(7)). Older kernels ignore this field.
    attributes.sched_runtime = 100000;
    if (sched_setattr(0, &attributes, 0) != 0)
    {
        std::fprintf(stderr, "warning: nice -20 was refused (capability SYS_NICE); the link may be late under load.\n");
    }
    if (const auto refusal = KeepCpusAwake())
    {
        std::fprintf(stderr, "warning: /dev/cpu_dma_latency: %s; idle CPUs fall asleep and the link may be late.\n", refusal->c_str());
    }
}

}  // namespace bentpipe
