#include "packet_edit.h"

#include "packet_facts.h"

#include <algorithm>

#include <arpa/inet.h>
#include <netinet/in.h>

namespace bentpipe
{

namespace
{

constexpr size_t kV4HeaderBytes = 20;
constexpr size_t kV6HeaderBytes = 40;
constexpr size_t kUdpHeaderBytes = 8;
constexpr size_t kV4ChecksumOffset = 10;
constexpr size_t kV4SourceOffset = 12;
constexpr size_t kV6SourceOffset = 8;

size_t
AddressBytes(bool v6)
{
    return v6 ? 16 : 4;
}

/// The new checksum when one of the covered words is replaced (RFC 1624, equation 3).
uint16_t
Updated(uint16_t checksum, uint16_t before, uint16_t after)
{
    uint32_t sum = static_cast<uint16_t>(~checksum) + static_cast<uint16_t>(~before) + after;
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<uint16_t>(~sum);
}

}  // namespace

std::string
ToText(const UdpEndpoint& endpoint)
{
    std::array<char, INET6_ADDRSTRLEN> text{};
    inet_ntop(endpoint.v6 ? AF_INET6 : AF_INET, endpoint.address.data(), text.data(), text.size());
    const std::string address(text.data());
    return (endpoint.v6 ? "[" + address + "]" : address) + ":" + std::to_string(endpoint.port);
}

std::optional<UdpPacket>
UdpPacket::Parse(ns3::Ptr<const ns3::Packet> packet)
{
    const PacketFacts facts = Describe(packet);
    if (facts.protocol != IPPROTO_UDP)
    {
        return std::nullopt;
    }
    UdpPacket udp;
    udp.bytes_.resize(packet->GetSize());
    packet->CopyData(udp.bytes_.data(), static_cast<uint32_t>(udp.bytes_.size()));
    udp.id_ = facts.id;
    udp.v6_ = udp.bytes_[0] >> 4 == 6;
    udp.udp_ = udp.v6_ ? kV6HeaderBytes : static_cast<size_t>(udp.bytes_[0] & 0x0f) * 4;
    // A fragment has the flag for more fragments, or an offset. Its payload alone doesn't show that it is a fragment.
    const bool fragment = !udp.v6_ && (udp.Word(6) & 0x3fff) != 0;
    const bool extended = udp.v6_ && udp.bytes_[6] != IPPROTO_UDP;
    if (fragment || extended || udp.udp_ < kV4HeaderBytes || udp.bytes_.size() < udp.udp_ + kUdpHeaderBytes)
    {
        return std::nullopt;
    }
    return udp;
}

UdpEndpoint
UdpPacket::Source() const
{
    return EndpointAt(v6_ ? kV6SourceOffset : kV4SourceOffset, udp_);
}

UdpEndpoint
UdpPacket::Destination() const
{
    return EndpointAt((v6_ ? kV6SourceOffset : kV4SourceOffset) + AddressBytes(v6_), udp_ + 2);
}

size_t
UdpPacket::PayloadBytes() const
{
    return bytes_.size() - udp_ - kUdpHeaderBytes;
}

bool
UdpPacket::IsShortHeader() const
{
    return PayloadBytes() > 0 && (bytes_[udp_ + kUdpHeaderBytes] & 0x80) == 0;
}

uint8_t
UdpPacket::Ecn() const
{
    return v6_ ? Word(0) >> 4 & 0x3 : bytes_[1] & 0x3;
}

void
UdpPacket::SetSource(const UdpEndpoint& endpoint)
{
    SetEndpointAt(v6_ ? kV6SourceOffset : kV4SourceOffset, udp_, endpoint);
}

void
UdpPacket::SetDestination(const UdpEndpoint& endpoint)
{
    SetEndpointAt((v6_ ? kV6SourceOffset : kV4SourceOffset) + AddressBytes(v6_), udp_ + 2, endpoint);
}

void
UdpPacket::SetEcn(uint8_t ecn)
{
    const int shift = v6_ ? 4 : 0;
    SetWord(0, static_cast<uint16_t>((Word(0) & ~(0x3 << shift)) | ecn << shift), Covered::kHeader);
}

void
UdpPacket::Corrupt(size_t offset, uint8_t mask)
{
    const size_t position = udp_ + kUdpHeaderBytes + offset;
    // The header's length is even, so the words of the packet are also the words of the checksum.
    const size_t word = position & ~size_t{1};
    if (word + 1 < bytes_.size())
    {
        SetWord(word, Word(word) ^ static_cast<uint16_t>(position == word ? mask << 8 : mask), Covered::kTransport);
        return;
    }
    // When the length is odd, the last byte is summed as if a zero byte followed.
    const auto before = static_cast<uint16_t>(bytes_[word] << 8);
    bytes_.push_back(0);
    SetWord(word, static_cast<uint16_t>(before ^ mask << 8), Covered::kTransport);
    bytes_.pop_back();
}

ns3::Ptr<ns3::Packet>
UdpPacket::Build() const
{
    const auto packet = ns3::Create<ns3::Packet>(bytes_.data(), static_cast<uint32_t>(bytes_.size()));
    packet->AddPacketTag(OriginTag(id_));
    return packet;
}

UdpEndpoint
UdpPacket::EndpointAt(size_t address, size_t port) const
{
    UdpEndpoint endpoint;
    endpoint.v6 = v6_;
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(address), AddressBytes(v6_), endpoint.address.begin());
    endpoint.port = Word(port);
    return endpoint;
}

void
UdpPacket::SetEndpointAt(size_t address, size_t port, const UdpEndpoint& endpoint)
{
    for (size_t i = 0; i < AddressBytes(v6_); i += 2)
    {
        const auto word = static_cast<uint16_t>(endpoint.address[i] << 8 | endpoint.address[i + 1]);
        SetWord(address + i, word, Covered::kBoth);
    }
    SetWord(port, endpoint.port, Covered::kTransport);
}

uint16_t
UdpPacket::Word(size_t offset) const
{
    return static_cast<uint16_t>(bytes_[offset] << 8 | bytes_[offset + 1]);
}

void
UdpPacket::SetWord(size_t offset, uint16_t value, Covered covered)
{
    const uint16_t before = Word(offset);
    const auto store = [this](size_t at, uint16_t word) {
        bytes_[at] = static_cast<uint8_t>(word >> 8);
        bytes_[at + 1] = static_cast<uint8_t>(word);
    };
    store(offset, value);
    if (!v6_ && covered != Covered::kTransport)
    {
        store(kV4ChecksumOffset, Updated(Word(kV4ChecksumOffset), before, value));
    }
    const uint16_t checksum = Word(udp_ + 6);
    if (covered != Covered::kHeader && checksum != 0)
    {
        // In this field zero means "no checksum" (RFC 768), so a checksum of zero is sent as 0xffff.
        const uint16_t updated = Updated(checksum, before, value);
        store(udp_ + 6, updated == 0 ? 0xffff : updated);
    }
}

}  // namespace bentpipe
