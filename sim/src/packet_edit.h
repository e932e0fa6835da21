#pragma once

#include "ns3/packet.h"

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace bentpipe
{

/// An address and a UDP port. An IPv4 address fills the first four bytes.
struct UdpEndpoint
{
    bool v6 = false;
    std::array<uint8_t, 16> address{};
    uint16_t port = 0;

    auto operator<=>(const UdpEndpoint&) const = default;
};

/// The endpoint as text, such as "193.167.0.100:443" or "[fd00::100]:443".
std::string ToText(const UdpEndpoint& endpoint);

/// An unfragmented UDP packet whose parts can be replaced. A right checksum stays right (RFC 1624).
class UdpPacket
{
  public:
    /// Parses a packet. Returns nothing for a packet that is not UDP, is a fragment, or has IPv6 extension headers.
    static std::optional<UdpPacket> Parse(ns3::Ptr<const ns3::Packet> packet);

    UdpEndpoint Source() const;
    UdpEndpoint Destination() const;
    size_t PayloadBytes() const;

    /// Whether the datagram begins with a QUIC short header: no long-header bit (RFC 9000 §17.3). The fixed bit may be greased (RFC 9287).
    bool IsShortHeader() const;

    /// The ECN field (RFC 3168 §5): 0 not ECT, 1 ECT(1), 2 ECT(0), 3 CE.
    uint8_t Ecn() const;

    void SetSource(const UdpEndpoint& endpoint);
    void SetDestination(const UdpEndpoint& endpoint);
    void SetEcn(uint8_t ecn);

    /// Flips the bits of `mask` in byte `offset` of the payload.
    void Corrupt(size_t offset, uint8_t mask);

    /// The packet with its changes, and with the id of the original packet.
    ns3::Ptr<ns3::Packet> Build() const;

  private:
    enum class Covered
    {
        kHeader,     // only the checksum of the IPv4 header covers it
        kBoth,       // that checksum, and as part of the pseudo header also the checksum of UDP
        kTransport,  // only the checksum of UDP covers it
    };

    UdpEndpoint EndpointAt(size_t address, size_t port) const;
    void SetEndpointAt(size_t address, size_t port, const UdpEndpoint& endpoint);
    uint16_t Word(size_t offset) const;
    void SetWord(size_t offset, uint16_t value, Covered covered);

    std::vector<uint8_t> bytes_;
    uint32_t id_ = 0;
    bool v6_ = false;
    size_t udp_ = 0;  // offset of the UDP header
};

}  // namespace bentpipe
