#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <netinet/in.h>

namespace bentpipe
{

/// The addresses of the kernel of this network namespace. Packets to these addresses are for the kernel, not for the path.
struct OwnAddresses
{
    std::vector<in_addr> v4;
    std::vector<in6_addr> v6;
};

/// The properties of a network interface that the program needs.
struct Interface
{
    std::string name;
    int index = 0;
    uint16_t mtu = 0;  ///< bytes, IP
};

/// Finds an interface. Throws UserError when it is missing or down, or when the kernel forwards on it.
Interface FindInterface(const std::string& name);

/// Lists the addresses of all interfaces.
OwnAddresses ListOwnAddresses();

/// Requests a timer slack of 1 ns, nice -20, the shortest time slice (0.1 ms), and CPUs that wake up at once (PM QoS, until the
/// process ends). A refused request gives a warning on stderr and is no error. Threads inherit the first three settings, so call
/// this before any thread starts.
void PrepareScheduling();

}  // namespace bentpipe
