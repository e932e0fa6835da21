#pragma once

#include "anchor.h"
#include "fields.h"
#include "impairment.h"
#include "packet_edit.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace bentpipe
{

/// The NAT gave a packet another address or port.
constexpr PacketEvent kTranslate{9, "translated"};

/// The change that a NAT makes, and its times (RFC 9000 §9).
struct Rebinding
{
    bool address = false;  ///< the address changes; false: the port
    double first_s = 0.0;  ///< seconds from the first 1-RTT packet to the first change
    double every_s = 0.0;  ///< seconds between further changes; 0: no further change
};

/// The field `rebinding` of the impairments of both directions; throws UserError.
std::optional<Rebinding> ReadRebinding(Fields& both);

/// A mapping of the NAT.
struct MappingTruth
{
    double time_s = 0.0;  ///< simulation time of the first packet that used the mapping
    std::string inner;    ///< the client's own address and port
    std::string outer;    ///< the address and port that the server sees
    uint64_t packets = 0; ///< packets towards the server
};

/// A NAT between client and link that changes its mappings (RFC 9000 §9.3, RFC 4787).
///
/// After a rebinding the client's packets have the new address or port. Packets to an older mapping still reach the client, so
/// the stack, and not the NAT, causes any loss after a rebinding.
class Nat
{
  public:
    /// `anchor` must outlive the NAT. `stream`: the stream of the random number generator from which ports are drawn.
    Nat(const Rebinding& rebinding, const Anchor& anchor, int64_t stream);

    /// For packets from the client; both results refer to this object.
    std::unique_ptr<Impairment> Outgoing();

    /// For packets to the client.
    std::unique_ptr<Impairment> Incoming();

    const std::vector<MappingTruth>& Mappings() const;

  private:
    class Out;
    class In;

    uint64_t Epoch() const;
    const std::pair<UdpEndpoint, size_t>& Mapping(const UdpEndpoint& inner, uint64_t epoch);
    UdpEndpoint Choose(const UdpEndpoint& inner, uint64_t epoch);

    Rebinding rebinding_;
    const Anchor& anchor_;
    ns3::Ptr<ns3::UniformRandomVariable> random_;
    std::map<std::pair<UdpEndpoint, uint64_t>, std::pair<UdpEndpoint, size_t>> outer_;  // size_t: the index in mappings_
    std::map<UdpEndpoint, UdpEndpoint> inner_;
    std::vector<MappingTruth> mappings_;
};

}  // namespace bentpipe
