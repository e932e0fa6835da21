#pragma once

#include "event_loop.h"
#include "histogram.h"
#include "host.h"
#include "packet_facts.h"
#include "parameters.h"
#include "raw_socket.h"

#include "ns3/network-module.h"

#include <cstdint>
#include <functional>
#include <vector>

#include <sys/socket.h>

namespace bentpipe
{

/// An ns-3 device on a raw socket. It discards frames that don't belong to the path, and reports each frame that it sends.
class RawDevice : public ns3::SimpleNetDevice
{
  public:
    /// Is called for each packet handed to the kernel. `lateness`: real time minus nominal time; `taken`: whether the kernel took it.
    using SentCallback = std::function<void(const PacketFacts&, ns3::Time lateness, bool taken)>;

    RawDevice() = default;
    ~RawDevice() override;

    /// Opens a socket on the interface; throws UserError. `foreign`: source addresses that don't exist behind this interface.
    void Open(ns3::Ptr<EventLoop> loop, const Interface& interface, const OwnAddresses& own, std::vector<Subnet> foreign);

    void SetSentCallback(SentCallback callback);

    /// From now on frames are read.
    void Start();

    /// From now on no frame is read or sent.
    void Close();

    /// Complete after `Close`.
    const SocketCounts& Counts() const;

    /// Times from the kernel's receive time to the link's.
    const Histogram& Lateness() const;

    bool SendFrom(ns3::Ptr<ns3::Packet> packet,
                  const ns3::Address& source,
                  const ns3::Address& destination,
                  uint16_t protocol) override;

  private:
    void Read();
    bool Discard(msghdr& message, const uint8_t* frame, size_t length);
    bool IsSpoofed(const uint8_t* frame, size_t length) const;

    ns3::Ptr<EventLoop> loop_;
    int fd_ = -1;
    SentCallback sent_;
    SocketCounts counts_;
    Histogram lateness_;
    std::vector<Subnet> foreign_;
};

}  // namespace bentpipe
