#pragma once

#include "impairment.h"

#include "ns3/core-module.h"
#include "ns3/simple-channel.h"
#include "ns3/simple-net-device.h"

#include <functional>
#include <vector>

namespace bentpipe
{

/// Connects two devices, with a propagation delay per direction. ns-3's own channels have the same delay for both directions.
class AsymmetricChannel : public ns3::SimpleChannel
{
  public:
    /// Is called when the last bit of a packet has left its transmitter. It may change the passage.
    using TransmittedCallback = std::function<void(Passage&)>;

    /// Lets packets of `sender` reach `receiver` after `delay`. Call it once for each of the two directions.
    void Connect(ns3::Ptr<ns3::SimpleNetDevice> sender,
                 ns3::Ptr<ns3::SimpleNetDevice> receiver,
                 ns3::Time delay,
                 TransmittedCallback transmitted);

    /// Sets the delay of packets that `sender` transmits from now on. With a shorter delay they don't overtake earlier packets.
    void SetDelay(ns3::Ptr<ns3::SimpleNetDevice> sender, ns3::Time delay);

    void Send(ns3::Ptr<ns3::Packet> packet,
              uint16_t protocol,
              ns3::Mac48Address to,
              ns3::Mac48Address from,
              ns3::Ptr<ns3::SimpleNetDevice> sender) override;

  protected:
    void DoDispose() override;

  private:
    struct Path
    {
        ns3::Ptr<ns3::SimpleNetDevice> sender;
        ns3::Ptr<ns3::SimpleNetDevice> receiver;
        ns3::Time delay;
        TransmittedCallback transmitted;
        ns3::Time last_arrival;  // the latest arrival among the packets that keep their order
    };

    std::vector<Path> paths_;
};

}  // namespace bentpipe
