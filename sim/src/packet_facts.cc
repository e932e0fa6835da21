#include "packet_facts.h"

#include <array>
#include <span>

#include <netinet/in.h>

namespace bentpipe
{

namespace
{

constexpr size_t kV4HeaderBytes = 20;
constexpr size_t kV6HeaderBytes = 40;
constexpr int kMaxExtensionHeaders = 8;

using Bytes = std::span<const uint8_t>;

uint16_t
Word(Bytes bytes, size_t offset)
{
    return offset + 2 <= bytes.size() ? static_cast<uint16_t>(bytes[offset] << 8 | bytes[offset + 1]) : 0;
}

uint16_t
TransportChecksum(Bytes bytes, size_t transport, uint8_t protocol)
{
    switch (protocol)
    {
    case IPPROTO_UDP:
        return Word(bytes, transport + 6);
    case IPPROTO_TCP:
        return Word(bytes, transport + 16);
    default:
        return 0;
    }
}

void
DescribeV4(Bytes bytes, PacketFacts& facts)
{
    facts.protocol = bytes[9];
    const bool first_fragment = (Word(bytes, 6) & 0x1fff) == 0;
    if (first_fragment)
    {
        facts.transport_checksum = TransportChecksum(bytes, static_cast<size_t>(bytes[0] & 0x0f) * 4, facts.protocol);
    }
}

void
DescribeV6(Bytes bytes, PacketFacts& facts)
{
    uint8_t next = bytes[6];
    size_t offset = kV6HeaderBytes;
    bool first_fragment = true;
    for (int i = 0; i < kMaxExtensionHeaders && offset + 8 <= bytes.size(); ++i)
    {
        if (next == IPPROTO_FRAGMENT)
        {
            first_fragment = first_fragment && (Word(bytes, offset + 2) & 0xfff8) == 0;
            next = bytes[offset];
            offset += 8;
        }
        else if (next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_DSTOPTS)
        {
            next = bytes[offset];
            offset += (static_cast<size_t>(bytes[offset + 1]) + 1) * 8;
        }
        else
        {
            break;
        }
    }
    facts.protocol = next;
    if (first_fragment)
    {
        facts.transport_checksum = TransportChecksum(bytes, offset, next);
    }
}

}  // namespace

OriginTag::OriginTag(uint32_t id)
    : id_(id)
{
}

ns3::TypeId
OriginTag::GetTypeId()
{
    static const ns3::TypeId type =
        ns3::TypeId("bentpipe::OriginTag").SetParent<ns3::Tag>().AddConstructor<OriginTag>();
    return type;
}

ns3::TypeId
OriginTag::GetInstanceTypeId() const
{
    return GetTypeId();
}

uint32_t
OriginTag::GetSerializedSize() const
{
    return sizeof(id_);
}

void
OriginTag::Serialize(ns3::TagBuffer buffer) const
{
    buffer.WriteU32(id_);
}

void
OriginTag::Deserialize(ns3::TagBuffer buffer)
{
    id_ = buffer.ReadU32();
}

void
OriginTag::Print(std::ostream& stream) const
{
    stream << "origin " << id_;
}

uint32_t
OriginTag::Id() const
{
    return id_;
}

PacketFacts
Describe(ns3::Ptr<const ns3::Packet> packet)
{
    std::array<uint8_t, 128> buffer{};
    const size_t size = packet->CopyData(buffer.data(), buffer.size());
    const Bytes bytes(buffer.data(), size);
    PacketFacts facts;
    OriginTag origin;
    facts.id = packet->PeekPacketTag(origin) ? origin.Id() : static_cast<uint32_t>(packet->GetUid());
    facts.ip_length = static_cast<uint16_t>(packet->GetSize());
    const int version = size > 0 ? bytes[0] >> 4 : 0;
    if (version == 4 && size >= kV4HeaderBytes)
    {
        DescribeV4(bytes, facts);
    }
    else if (version == 6 && size >= kV6HeaderBytes)
    {
        DescribeV6(bytes, facts);
    }
    return facts;
}

}  // namespace bentpipe
