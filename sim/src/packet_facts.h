#pragma once

#include "ns3/packet.h"

#include <cstdint>

namespace bentpipe
{

/// What the link knows about one IP packet.
struct PacketFacts
{
    uint32_t id = 0;                  ///< unique in this run, in order of arrival, both directions together
    uint16_t ip_length = 0;           ///< bytes
    uint8_t protocol = 0;             ///< transport protocol (IANA), after IPv6 extension headers
    uint16_t transport_checksum = 0;  ///< checksum field of UDP or TCP, 0 for others and later fragments
};

/// Reads the facts from a packet that begins with its IP header.
PacketFacts Describe(ns3::Ptr<const ns3::Packet> packet);

}  // namespace bentpipe
