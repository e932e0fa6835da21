#pragma once

#include "ns3/packet.h"
#include "ns3/tag.h"

#include <cstdint>

namespace bentpipe
{

/// What the link knows about one IP packet.
struct PacketFacts
{
    uint32_t id = 0;                  ///< unique in this run; counts the arrivals of both directions together
    uint16_t ip_length = 0;           ///< bytes
    uint8_t protocol = 0;             ///< transport protocol (IANA number) that follows any IPv6 extension headers
    uint16_t transport_checksum = 0;  ///< checksum field of UDP or TCP; 0 for other protocols and for later fragments
};

/// Carries the id of a packet to the new packet that is made when a part of it is replaced.
class OriginTag : public ns3::Tag
{
  public:
    OriginTag() = default;
    explicit OriginTag(uint32_t id);
    static ns3::TypeId GetTypeId();
    ns3::TypeId GetInstanceTypeId() const override;
    uint32_t GetSerializedSize() const override;
    void Serialize(ns3::TagBuffer buffer) const override;
    void Deserialize(ns3::TagBuffer buffer) override;
    void Print(std::ostream& stream) const override;
    uint32_t Id() const;

  private:
    uint32_t id_ = 0;
};

/// Reads the facts from a packet that begins with its IP header.
PacketFacts Describe(ns3::Ptr<const ns3::Packet> packet);

}  // namespace bentpipe
