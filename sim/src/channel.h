#pragma once

#include "ns3/core-module.h"
#include "ns3/simple-channel.h"
#include "ns3/simple-net-device.h"

#include <functional>
#include <vector>

namespace bentpipe
{

/// Two devices and a propagation delay per direction; ns-3's own channels have one delay for both.
class AsymmetricChannel : public ns3::SimpleChannel
{
  public:
    /// Called when the last bit of a packet has left its transmitter.
    using TransmittedCallback = std::function<void()>;

    /// Declares that packets of `sender` reach `receiver` after `delay`; once for each of the two directions.
    void Connect(ns3::Ptr<ns3::SimpleNetDevice> sender,
                 ns3::Ptr<ns3::SimpleNetDevice> receiver,
                 ns3::Time delay,
                 TransmittedCallback transmitted);

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
    };

    std::vector<Path> paths_;
};

}  // namespace bentpipe
