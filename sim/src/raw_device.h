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

/// The counts of the thread that reads a socket. Read them only after the device has stopped.
struct ReceiveCounters
{
    uint64_t too_long = 0;          ///< discarded frames that are longer than the MTU allows; the sender's segmentation offload is on
    uint64_t checksum_missing = 0;  ///< frames whose checksum the sender left to hardware; the sender's tx offload is on
    uint64_t spoofed = 0;           ///< discarded frames with a source address of the other end, or with a VLAN tag
    Histogram lateness;             ///< from the kernel's receive time to the link's
};

/// An ns-3 device on a raw socket. It counts events that ns-3's own reader doesn't report, and reports each frame that it sends.
class RawDevice : public ns3::FdNetDevice
{
  public:
    /// Is called for each packet handed to the kernel. `lateness`: real time minus nominal time; `taken`: whether the kernel took it.
    using SentCallback = std::function<void(const PacketFacts&, ns3::Time lateness, bool taken)>;

    void SetSentCallback(SentCallback callback);

    /// Sets the source addresses that don't exist behind this interface. Call it before the device starts.
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
