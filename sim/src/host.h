#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <netinet/in.h>

namespace bentpipe
{

/// The addresses that the kernel of this network namespace owns; packets to them are for the kernel, not for the path.
struct OwnAddresses
{
    std::vector<in_addr> v4;
    std::vector<in6_addr> v6;
};

/// A network interface as the program needs it.
struct Interface
{
    std::string name;
    int index = 0;
    uint16_t mtu = 0;  ///< bytes, IP
};

/// Finds an interface and checks that it is up and that the kernel does not forward on it; throws UserError.
Interface FindInterface(const std::string& name);

/// Lists the addresses of all interfaces.
OwnAddresses ListOwnAddresses();

/// Asks for timer slack 1 ns, nice -20, the shortest slice of time (0.1 ms) and for CPUs that wake up at once (PM QoS, until the
/// process ends); a refusal is reported on stderr and is no error. Threads inherit the first three, so this comes before any thread.
void PrepareScheduling();

}  // namespace bentpipe
