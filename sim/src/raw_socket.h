#pragma once

#include "host.h"

#include <cstdint>

namespace bentpipe
{

/// Opens an AF_PACKET socket on the interface that receives only frames of the path.
///
/// A frame of the path is addressed to the interface's own MAC address, and has an IPv4 or IPv6 packet whose destination address is
/// neither in `own` nor link-local. The kernel handles all other frames: ARP, neighbour discovery, broadcast, multicast and packets
/// for the kernel. Throws UserError.
int OpenRawSocket(const Interface& interface, const OwnAddresses& own);

/// The number of frames of the path that the kernel dropped since the last call, because the socket's buffer was full
/// (PACKET_STATISTICS).
uint64_t ReadKernelDrops(int fd);

}  // namespace bentpipe
