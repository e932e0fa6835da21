#include "flows.h"

#include <algorithm>

namespace bentpipe
{

namespace
{

constexpr uint32_t kMostFlows = 10'000;  // a client that uses a new port for each packet must not fill the memory

}  // namespace

uint32_t
Flows::NumberOf(ns3::Ptr<const ns3::Packet> packet)
{
    const auto udp = UdpPacket::Parse(packet);
    if (!udp)
    {
        return 0;
    }
    const auto ends = std::minmax({udp->Source(), udp->Destination()});
    const auto known = numbers_.find(ends);
    if (known != numbers_.end() || numbers_.size() == kMostFlows)
    {
        return known != numbers_.end() ? known->second : kMostFlows - 1;
    }
    return numbers_.emplace(ends, static_cast<uint32_t>(numbers_.size())).first->second;
}

}  // namespace bentpipe
