#include "anchor.h"

#include "packet_edit.h"

#include <utility>

namespace bentpipe
{

void
Anchor::Apply(Passage& passage)
{
    if (first_one_rtt_)
    {
        return;
    }
    const auto udp = UdpPacket::Parse(passage.packet);
    if (!udp)
    {
        return;
    }
    if (!udp_seen_)
    {
        udp_seen_ = true;
        for (const auto& action : at_first_udp_)
        {
            action();
        }
    }
    if (udp->IsShortHeader())
    {
        first_one_rtt_ = ns3::Simulator::Now();
    }
}

std::optional<ns3::Time>
Anchor::FirstOneRtt() const
{
    return first_one_rtt_;
}

std::optional<double>
Anchor::SinceFirstOneRtt() const
{
    if (!first_one_rtt_)
    {
        return std::nullopt;
    }
    return (ns3::Simulator::Now() - *first_one_rtt_).GetSeconds();
}

void
Anchor::AtFirstUdp(std::function<void()> action)
{
    at_first_udp_.push_back(std::move(action));
}

}  // namespace bentpipe
