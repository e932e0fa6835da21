#pragma once

#include "direction_truth.h"
#include "histogram.h"
#include "nat.h"
#include "parameters.h"
#include "raw_socket.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace bentpipe
{

/// The events and measurements that the link knows; the README describes the file.
struct Truth
{
    Parameters parameters;
    double origin_unix_s = 0.0;  ///< wall clock of simulation time 0
    double duration_s = 0.0;
    double clock_step_s = 0.0;  ///< seconds by which the wall clock moved against the steady clock
    std::optional<double> first_1rtt_s;  ///< when the first datagram that begins with a 1-RTT packet passed
    std::vector<MappingTruth> mappings;  ///< mappings of the NAT, in the order in which they were made
    DirectionCounts forward;
    DirectionCounts back;
    SocketCounts left;
    SocketCounts right;
    Histogram lateness;          ///< real time minus nominal time, for every packet handed to the kernel
    Histogram receive_lateness;  ///< time from the kernel's receive time to the link's, for every received packet
};

/// The truth file. It is created empty under a temporary name at the start, so that a bad path fails before the run.
class TruthFile
{
  public:
    /// Throws UserError.
    explicit TruthFile(const std::string& path);
    ~TruthFile();
    TruthFile(const TruthFile&) = delete;
    TruthFile& operator=(const TruthFile&) = delete;

    /// Writes, syncs and renames the file; throws std::runtime_error.
    void Commit(const Truth& truth);

  private:
    std::string path_;
    std::string temporary_;
    int fd_;
};

}  // namespace bentpipe
