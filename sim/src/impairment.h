#pragma once

#include "packet_log.h"

#include "ns3/core-module.h"
#include "ns3/packet.h"

#include <optional>
#include <vector>

namespace bentpipe
{

/// A packet between its transmitter and its receiver, and what was done to it.
struct Passage
{
    ns3::Ptr<ns3::Packet> packet;
    ns3::Time delay;             ///< until it arrives
    bool apart = false;          ///< others may overtake it, and it others
    std::optional<PacketEvent> dropped;
    std::vector<PacketEvent> changes;  ///< for the log: it was corrupted, marked, held back, or got another address
};

/// Something that a link does to packets, beside losing them and making them late.
class Impairment
{
  public:
    virtual ~Impairment() = default;
    virtual void Apply(Passage& passage) = 0;
};

}  // namespace bentpipe
