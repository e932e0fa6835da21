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

/// What a NAT changes and when (RFC 9000 §9).
struct Rebinding
{
    bool address = false;  ///< the address changes; false: the port
    double first_s = 0.0;  ///< after the first 1-RTT packet
    double every_s = 0.0;  ///< from then on; 0: never again
};

/// The field `rebinding` of the impairments of both directions; throws UserError.
std::optional<Rebinding> ReadRebinding(Fields& both);

/// A mapping that the NAT made, when its first packet used it.
struct MappingTruth
{
    double time_s = 0.0;  ///< of the simulation
    std::string inner;    ///< the client's own address and port
    std::string outer;    ///< what the server sees
    uint64_t packets = 0; ///< towards the server
};

/// A NAT between client and link that changes its mappings (RFC 9000 §9.3, RFC 4787).
///
/// From a rebinding on, the client's packets carry the new mapping. Packets to an older mapping still reach the client:
/// what a rebinding costs is then the stack's doing, not the NAT's.
class Nat
{
  public:
    /// `anchor` must outlive it. `stream` is of the random number generator: the ports.
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
    std::map<std::pair<UdpEndpoint, uint64_t>, std::pair<UdpEndpoint, size_t>> outer_;  // and its number in mappings_
    std::map<UdpEndpoint, UdpEndpoint> inner_;
    std::vector<MappingTruth> mappings_;
};

}  // namespace bentpipe
