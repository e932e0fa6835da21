#pragma once

#include "packet_log.h"

#include "ns3/core-module.h"
#include "ns3/packet.h"

#include <optional>
#include <vector>

namespace bentpipe
{

/// A packet between its transmitter and its receiver, and the changes that impairments made to it.
struct Passage
{
    ns3::Ptr<ns3::Packet> packet;
    ns3::Time delay;             ///< time until it arrives
    bool apart = false;          ///< it may overtake other packets, and other packets may overtake it
    std::optional<PacketEvent> dropped;
    std::vector<PacketEvent> changes;  ///< for the log: the packet was corrupted, marked, held back, or translated
};

/// An effect of a link on packets, other than loss and constant delay.
class Impairment
{
  public:
    virtual ~Impairment() = default;
    virtual void Apply(Passage& passage) = 0;
};

}  // namespace bentpipe
