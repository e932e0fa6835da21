#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

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

/// One direction of the path.
struct LinkParameters
{
    uint64_t rate_bps = 0;  ///< data rate, bit/s, of IP bytes
    double delay_s = 0.0;   ///< one-way propagation delay, s
    std::string queue;      ///< drop-tail limit: "125p" (packets) or "750000B" (IP bytes)
    double loss = 0.0;      ///< probability that a packet is lost after transmission, 0..1
};

/// The whole command line.
struct Parameters
{
    std::string left;        ///< interface towards the client
    std::string right;       ///< interface towards the server
    LinkParameters forward;  ///< right to left, towards the client
    LinkParameters back;     ///< left to right; "return" on the command line and in the truth
    LossProtocol loss_protocol = LossProtocol::kUdp;
    uint32_t seed = 0;
    std::string truth_path;
    std::string packets_path;  ///< empty: no per-packet log
    uint16_t ready_port = 57832;
    bool help = false;
};

/// The arguments, one per line, for --help.
const char* UsageText();

/// Parses `--name=value` arguments; throws UserError.
Parameters ParseParameters(int argc, const char* const* argv);

}  // namespace bentpipe
