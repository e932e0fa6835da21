#include "channel.h"

#include "ns3/node.h"

#include <utility>

namespace bentpipe
{

void
AsymmetricChannel::Connect(ns3::Ptr<ns3::SimpleNetDevice> sender,
                           ns3::Ptr<ns3::SimpleNetDevice> receiver,
                           ns3::Time delay,
                           TransmittedCallback transmitted)
{
    paths_.push_back({sender, receiver, delay, std::move(transmitted)});
}

void
AsymmetricChannel::Send(ns3::Ptr<ns3::Packet> packet,
                        uint16_t protocol,
                        ns3::Mac48Address to,
                        ns3::Mac48Address from,
                        ns3::Ptr<ns3::SimpleNetDevice> sender)
{
    for (const Path& path : paths_)
    {
        if (path.sender == sender)
        {
            path.transmitted();
            ns3::Simulator::ScheduleWithContext(path.receiver->GetNode()->GetId(),
                                                path.delay,
                                                &ns3::SimpleNetDevice::Receive,
                                                path.receiver,
                                                packet,
                                                protocol,
                                                to,
                                                from);
        }
    }
}

void
AsymmetricChannel::DoDispose()
{
    paths_.clear();
    SimpleChannel::DoDispose();
}

}  // namespace bentpipe
