#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace bentpipe
{

/// Something that the caller must mend: bad argument, missing interface, wrong sysctl. The text is one sentence with the mend.
class UserError : public std::runtime_error
{
  public:
    using std::runtime_error::runtime_error;
};

/// Which packets the loss model may take.
enum class LossProtocol
{
    kUdp,
    kAny,
};

/// The first and last of a run of packets, counted from 1 in one direction.
struct PacketRange
{
    uint64_t first = 0;
    uint64_t last = 0;
};

/// Two-state loss after Gilbert and Elliott: every packet of the bad state is lost, none of the good one.
struct GilbertElliott
{
    double to_bad = 0.0;   ///< probability per packet of leaving the good state
    double to_good = 0.0;  ///< probability per packet of leaving the bad state
};

/// What a link becomes at a moment.
struct LinkChange
{
    double time_s = 0.0;  ///< after the first UDP packet
    double delay_s = 0.0;
    uint64_t rate_bps = 0;
    double loss = 0.0;
};

/// One direction of the path.
struct LinkParameters
{
    uint64_t rate_bps = 0;  ///< data rate, bit/s, of IP bytes
    double delay_s = 0.0;   ///< one-way propagation delay, s
    std::string queue;      ///< drop-tail limit: "125p" (packets) or "750000B" (IP bytes)
    double loss = 0.0;      ///< probability that a packet is lost after transmission, 0..1
    std::optional<GilbertElliott> gilbert_elliott;  ///< loses in bursts, instead of `loss`
    std::vector<PacketRange> loss_list;             ///< these packets are lost, and with `loss` others too
    double corruption = 0.0;       ///< probability that a byte of a UDP payload changes; the packet is delivered
    uint32_t burst = 0;            ///< longest run of losses, and of corruptions; 0: no limit
    double jitter_s = 0.0;         ///< the delay grows by 0..jitter_s, uniformly
    double reorder = 0.0;          ///< probability that a packet is held back, s, by reorder_delay_s
    double reorder_delay_s = 0.0;
    uint32_t mark_packets = 0;     ///< ECN: packets that leave such a queue, or a longer one, behind get CE; 0: never
    std::vector<LinkChange> changes;
};

/// A time without any UDP packet.
struct Outage
{
    double start_s = 0.0;  ///< after the first 1-RTT packet
    double duration_s = 0.0;
};

/// A path whose MTU falls without a word (RFC 8899 §1.2 calls it a black hole).
struct MtuFall
{
    uint32_t bytes = 0;    ///< longer IP packets with UDP vanish
    double start_s = 0.0;  ///< after the first 1-RTT packet
};

/// A NAT before the client that gives it other addresses or ports (RFC 9000 §9).
struct Rebinding
{
    bool address = false;  ///< the address changes; false: the port
    double first_s = 0.0;  ///< after the first 1-RTT packet
    double every_s = 0.0;  ///< from then on; 0: never again
};

/// A block of addresses, `prefix` bits long; IPv4 has 4 bytes, IPv6 16.
struct Subnet
{
    std::vector<uint8_t> address;
    uint32_t prefix = 0;
};

/// The whole command line.
struct Parameters
{
    std::string left;        ///< interface towards the client
    std::string right;       ///< interface towards the server
    LinkParameters forward;  ///< right to left, towards the client
    LinkParameters back;     ///< left to right; "return" on the command line and in the truth
    LossProtocol loss_protocol = LossProtocol::kUdp;
    bool overtaking = false;  ///< jitter may change the order of packets
    std::optional<Outage> outage;
    std::optional<MtuFall> mtu_fall;
    std::optional<Rebinding> rebinding;
    uint32_t seed = 0;
    std::vector<Subnet> left_foreign;   ///< sources that nobody on the left has: packets from there are dropped
    std::vector<Subnet> right_foreign;  ///< likewise on the right
    uint64_t flood_bytes = 0;  ///< a capture of one side; more is a flood, and closes the link; 0: never
    std::string truth_path;
    std::string packets_path;  ///< empty: no per-packet log
    uint16_t ready_port = 57832;
    bool help = false;
};

/// The arguments, one per line, for --help.
const char* UsageText();

/// Parses `--name=value` arguments; throws UserError.
Parameters ParseParameters(const std::vector<std::string>& arguments);

}  // namespace bentpipe
