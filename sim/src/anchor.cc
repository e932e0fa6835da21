#include "anchor.h"

#include "packet_edit.h"
#include "packet_facts.h"

#include <utility>

#include <netinet/in.h>

namespace bentpipe
{

Anchor::Anchor(bool udp_only)
    : udp_only_(udp_only)
{
}

void
Anchor::Apply(Passage& passage)
{
    if (first_one_rtt_)
    {
        return;
    }
    const auto udp = UdpPacket::Parse(passage.packet);
    if (!begun_ && (udp || (!udp_only_ && Describe(passage.packet).protocol == IPPROTO_TCP)))
    {
        begun_ = true;
        for (const auto& action : at_first_packet_)
        {
            action();
        }
    }
    if (udp && udp->IsShortHeader())
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
Anchor::AtFirstPacket(std::function<void()> action)
{
    at_first_packet_.push_back(std::move(action));
}

}  // namespace bentpipe
