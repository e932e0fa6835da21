#include "channel.h"

#include "ns3/node.h"

#include <algorithm>
#include <utility>

namespace bentpipe
{

void
AsymmetricChannel::Connect(ns3::Ptr<ns3::SimpleNetDevice> sender,
                           ns3::Ptr<ns3::SimpleNetDevice> receiver,
                           ns3::Time delay,
                           TransmittedCallback transmitted)
{
    paths_.push_back({sender, receiver, delay, std::move(transmitted), ns3::Time(0)});
}

void
AsymmetricChannel::SetDelay(ns3::Ptr<ns3::SimpleNetDevice> sender, ns3::Time delay)
{
    for (Path& path : paths_)
    {
        if (path.sender == sender)
        {
            path.delay = delay;
        }
    }
}

void
AsymmetricChannel::Send(ns3::Ptr<ns3::Packet> packet,
                        uint16_t protocol,
                        ns3::Mac48Address to,
                        ns3::Mac48Address from,
                        ns3::Ptr<ns3::SimpleNetDevice> sender)
{
    for (Path& path : paths_)
    {
        if (path.sender != sender)
        {
            continue;
        }
        Passage passage{packet, path.delay, false, std::nullopt, {}};
        path.transmitted(passage);
        if (passage.dropped)
        {
            continue;
        }
        const ns3::Time now = ns3::Simulator::Now();
        if (!passage.apart)
        {
            path.last_arrival = std::max(path.last_arrival, now + passage.delay);
            passage.delay = path.last_arrival - now;
        }
        ns3::Simulator::ScheduleWithContext(path.receiver->GetNode()->GetId(),
                                            passage.delay,
                                            &ns3::SimpleNetDevice::Receive,
                                            path.receiver,
                                            passage.packet,
                                            protocol,
                                            to,
                                            from);
    }
}

void
AsymmetricChannel::DoDispose()
{
    paths_.clear();
    SimpleChannel::DoDispose();
}

}  // namespace bentpipe
