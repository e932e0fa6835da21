#include "truth.h"

#include "ns3/version.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace bentpipe
{

namespace
{

constexpr int kSchema = 2;

using nlohmann::json;

json
ToJson(const DirectionCounts& counts)
{
    json object{{"busy_s", counts.busy_s},
                {"bytes_in", counts.bytes_in},
                {"bytes_out", counts.bytes_out},
                {"dropped_loss", counts.dropped_loss},
                {"dropped_queue", counts.dropped_queue},
                {"in_flight", counts.in_flight},
                {"packets_in", counts.packets_in},
                {"packets_out", counts.packets_out},
                {"queue_max_packets", counts.queue_max_packets},
                {"queue_mean_packets", counts.queue_mean_packets},
                {"send_errors", counts.send_errors}};
    object.update(json(counts.impaired));
    return object;
}

json
ToJson(const SocketCounts& counts)
{
    return {{"checksum_missing", counts.checksum_missing},
            {"kernel_drops", counts.kernel_drops},
            {"spoofed", counts.spoofed},
            {"too_long", counts.too_long}};
}

json
ToJson(const Histogram& histogram)
{
    return {{"count", histogram.Count()},
            {"max", histogram.Max()},
            {"p50", histogram.Percentile(0.5)},
            {"p99", histogram.Percentile(0.99)},
            {"p999", histogram.Percentile(0.999)}};
}

json
ToJson(const std::vector<MappingTruth>& mappings)
{
    json list = json::array();
    for (const MappingTruth& mapping : mappings)
    {
        list.push_back({{"inner", mapping.inner},
                        {"outer", mapping.outer},
                        {"packets", mapping.packets},
                        {"time_s", mapping.time_s}});
    }
    return list;
}

json
ToJson(const Truth& truth)
{
    return {{"clock_step_s", truth.clock_step_s},
            {"duration_s", truth.duration_s},
            {"first_1rtt_s", truth.first_1rtt_s ? json(*truth.first_1rtt_s) : json()},
            {"forward", ToJson(truth.forward)},
            {"lateness_s", ToJson(truth.lateness)},
            {"ns3", std::to_string(ns3::Version::Major()) + "." + std::to_string(ns3::Version::Minor())},
            {"origin_unix_s", truth.origin_unix_s},
            {"mappings", ToJson(truth.mappings)},
            {"parameters", truth.parameters.document},
            {"receive_lateness_s", ToJson(truth.receive_lateness)},
            {"return", ToJson(truth.back)},
            {"schema", kSchema},
            {"seed", truth.parameters.seed},
            {"sockets", {{"left", ToJson(truth.left)}, {"right", ToJson(truth.right)}}}};
}

}  // namespace

TruthFile::TruthFile(const std::string& path)
    : path_(path),
      temporary_(path + ".tmp"),
      fd_(open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644))
{
    if (fd_ < 0)
    {
        throw UserError("The truth file '" + path + "' can't be written: " + std::strerror(errno) + ".");
    }
}

TruthFile::~TruthFile()
{
    if (fd_ >= 0)
    {
        close(fd_);
        unlink(temporary_.c_str());
    }
}

void
TruthFile::Commit(const Truth& truth)
{
    const std::string text = ToJson(truth).dump() + "\n";
    const bool written = write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd_) == 0 &&
                         std::rename(temporary_.c_str(), path_.c_str()) == 0;
    if (!written)
    {
        throw std::runtime_error("The truth file '" + path_ + "' can't be written: " + std::strerror(errno) + ".");
    }
    close(fd_);
    fd_ = -1;
}

}  // namespace bentpipe
