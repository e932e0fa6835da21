#pragma once

#include "host.h"

#include <cstdint>

namespace bentpipe
{

/// Opens an AF_PACKET socket on the interface that receives only frames of the path.
///
/// Of the path are IPv4 and IPv6 packets in frames addressed to the interface's own MAC address, whose destination address is
/// neither one of `own` nor link-local. ARP, neighbour discovery, broadcast, multicast and packets for the kernel stay with
/// the kernel. Throws UserError.
int OpenRawSocket(const Interface& interface, const OwnAddresses& own);

/// Frames of the path that the kernel dropped because the socket's buffer was full, since the last call (PACKET_STATISTICS).
uint64_t ReadKernelDrops(int fd);

}  // namespace bentpipe
