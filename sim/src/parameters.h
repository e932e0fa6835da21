#pragma once

#include "impairments.h"
#include "loss.h"
#include "nat.h"
#include "user_error.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace bentpipe
{

/// What a direction becomes at a moment.
struct Change
{
    double time_s = 0.0;  ///< after the first UDP packet
    double delay_s = 0.0;
    uint64_t data_rate = 0;
    double loss = 0.0;
};

/// One direction of the link.
struct DirectionParameters
{
    uint64_t data_rate = 0;      ///< bit/s, of IP bytes
    double delay_s = 0.0;        ///< one way
    uint32_t queue_packets = 0;  ///< that wait at most
    LossParameters loss;
    std::vector<Change> changes;
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
    std::vector<Subnet> foreign;  ///< sources that nobody there has: packets from there are dropped
};

/// The whole document.
struct Parameters
{
    nlohmann::json document;      ///< as it was given, with the defaults of what was left out
    End left;                     ///< towards the client
    End right;                    ///< towards the server
    DirectionParameters forward;  ///< right to left, towards the client
    DirectionParameters back;     ///< left to right; "return" in the document and in the truth
    std::optional<Rebinding> rebinding;
    uint32_t seed = 0;
    uint64_t flood_bytes = 0;  ///< a capture of one side; more is a flood, and closes the link; 0: never
    std::string truth_path;
    std::string packets_path;  ///< empty: no per-packet log
    uint16_t ready_port = 0;
};

/// How the program is called, and a document with all fields, for --help.
std::string UsageText();

/// Reads the document of a link (README); throws UserError.
Parameters ParseParameters(const std::string& text);

}  // namespace bentpipe
