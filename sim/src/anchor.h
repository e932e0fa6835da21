#pragma once

#include "impairment.h"

#include <functional>
#include <optional>
#include <vector>

namespace bentpipe
{

/// The two moments from which impairments and changes count their times. It finds them in the packets of both directions.
class Anchor : public Impairment
{
  public:
    /// `udp_only`: only UDP begins the changes of the link; otherwise the first packet of TCP does so, too.
    explicit Anchor(bool udp_only);

    void Apply(Passage& passage) override;

    /// When the first datagram that begins with a 1-RTT packet left its transmitter (RFC 9000 §17.3.1).
    std::optional<ns3::Time> FirstOneRtt() const;

    /// Seconds since the first such datagram; nothing before it.
    std::optional<double> SinceFirstOneRtt() const;

    /// Calls `action` at the first packet.
    void AtFirstPacket(std::function<void()> action);

  private:
    std::optional<ns3::Time> first_one_rtt_;
    bool udp_only_;
    bool begun_ = false;
    std::vector<std::function<void()>> at_first_packet_;
};

}  // namespace bentpipe
