#pragma once

#include "host.h"

#include <cstdint>

namespace bentpipe
{

/// The counts of one raw socket.
struct SocketCounts
{
    uint64_t kernel_drops = 0;      ///< frames that the kernel dropped because the receive buffer was full
    uint64_t too_long = 0;          ///< discarded frames that are longer than the MTU allows; the sender's segmentation offload is on
    uint64_t checksum_missing = 0;  ///< frames whose checksum the sender left to hardware; the sender's tx offload is on
    uint64_t spoofed = 0;           ///< discarded frames with a source address of the other end, or with a VLAN tag
};

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
