#pragma once

#include "impairments.h"
#include "loss.h"
#include "nat.h"
#include "transmitter.h"
#include "user_error.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace bentpipe
{

/// The values of a direction from a given time on.
struct Change
{
    double time_s = 0.0;  ///< seconds after the first packet
    double delay_s = 0.0;
    uint64_t data_rate = 0;  ///< 0: packets wait
    double loss = 0.0;
    bool handover = false;  ///< the losses belong to a handover
};

/// One direction of the link.
struct DirectionParameters
{
    uint64_t data_rate = 0;      ///< bit/s of IP bytes
    double delay_s = 0.0;        ///< one way
    uint32_t queue_packets = 0;  ///< the most packets that wait
    std::string queue_discipline;
    LossParameters loss;
    std::vector<Change> changes;  ///< in the order of their times
    std::optional<DamaParameters> dama;
    std::vector<ImpairmentMaker> impairments;  ///< in the order in which they act
};

/// A block of addresses, `prefix` bits long; IPv4 has 4 bytes, IPv6 16.
struct Subnet
{
    std::vector<uint8_t> address;
    uint32_t prefix = 0;
};

/// One end of the link.
struct End
{
    std::string interface;
    std::vector<Subnet> foreign;  ///< source addresses that don't exist on this side; packets with them are dropped
};

/// The whole document.
struct Parameters
{
    nlohmann::json document;      ///< the given document, with defaults for absent fields
    End left;                     ///< towards the client
    End right;                    ///< towards the server
    DirectionParameters forward;  ///< right to left, towards the client
    DirectionParameters back;     ///< left to right; "return" in the document and in the truth
    std::optional<Rebinding> rebinding;
    bool udp_only = true;  ///< packets of other protocols are never lost
    uint32_t seed = 0;
    uint64_t flood_bytes = 0;  ///< when a capture of one side would have more bytes, this is a flood and closes the link; 0: no limit
    std::string truth_path;
    std::string packets_path;  ///< empty: no per-packet log
    uint16_t ready_port = 0;
};

/// The text of --help: how to call the program, and a document with all defaults.
std::string UsageText();

/// Reads the document of a link (README); throws UserError.
Parameters ParseParameters(const std::string& text);

}  // namespace bentpipe
