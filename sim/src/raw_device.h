#pragma once

#include "histogram.h"
#include "packet_facts.h"
#include "parameters.h"

#include "ns3/fd-net-device-module.h"

#include <cstdint>
#include <functional>
#include <vector>

namespace bentpipe
{

/// What the thread that reads a socket saw. Read it only after the device has stopped.
struct ReceiveCounters
{
    uint64_t too_long = 0;          ///< frames longer than the MTU allows, discarded: segmentation offload left on at the sender
    uint64_t checksum_missing = 0;  ///< frames whose checksum the sender left to hardware: tx offload left on at the sender
    uint64_t spoofed = 0;           ///< frames with a source address of the other end, or with a VLAN tag, discarded
    Histogram lateness;             ///< from the kernel's receive time to the link's
};

/// An ns-3 device on a raw socket that counts what ns-3's own reader hides and reports each frame it sends.
class RawDevice : public ns3::FdNetDevice
{
  public:
    /// Called for each packet handed to the kernel: the packet, real time minus nominal time, whether the kernel took it.
    using SentCallback = std::function<void(const PacketFacts&, ns3::Time lateness, bool taken)>;

    void SetSentCallback(SentCallback callback);

    /// Sources that nobody behind this interface has; before the device starts.
    void SetForeign(std::vector<Subnet> subnets);

    const ReceiveCounters& Counters() const;

    bool SendFrom(ns3::Ptr<ns3::Packet> packet,
                  const ns3::Address& source,
                  const ns3::Address& destination,
                  uint16_t protocol) override;

  private:
    ns3::Ptr<ns3::FdReader> DoCreateFdReader() override;

    SentCallback sent_;
    ReceiveCounters counters_;
    std::vector<Subnet> foreign_;
};

/// Wall-clock time since the start of the simulation.
ns3::Time RealtimeNow();

}  // namespace bentpipe
