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

constexpr int kSchema = 1;

using nlohmann::json;

json
ToJson(const LinkParameters& link)
{
    json made{{"burst", link.burst},
              {"corruption", link.corruption},
              {"delay_s", link.delay_s},
              {"jitter_s", link.jitter_s},
              {"loss", link.loss},
              {"loss_list", json::array()},
              {"mark_packets", link.mark_packets},
              {"queue", link.queue},
              {"rate_bps", link.rate_bps},
              {"reorder", link.reorder},
              {"reorder_delay_s", link.reorder_delay_s}};
    for (const PacketRange& range : link.loss_list)
    {
        made["loss_list"].push_back({range.first, range.last});
    }
    if (link.gilbert_elliott)
    {
        made["gilbert_elliott"] = {{"to_bad", link.gilbert_elliott->to_bad}, {"to_good", link.gilbert_elliott->to_good}};
    }
    for (const LinkChange& change : link.changes)
    {
        made["changes"].push_back({{"time_s", change.time_s},
                                   {"delay_s", change.delay_s},
                                   {"rate_bps", change.rate_bps},
                                   {"loss", change.loss}});
    }
    return made;
}

json
ToJson(const DirectionCounts& counts)
{
    return {{"busy_s", counts.busy_s},
            {"bytes_in", counts.bytes_in},
            {"bytes_out", counts.bytes_out},
            {"corrupted", counts.corrupted},
            {"dropped_loss", counts.dropped_loss},
            {"dropped_mtu", counts.dropped_mtu},
            {"dropped_outage", counts.dropped_outage},
            {"dropped_queue", counts.dropped_queue},
            {"held_back", counts.held_back},
            {"in_flight", counts.in_flight},
            {"marked", counts.marked},
            {"packets_in", counts.packets_in},
            {"packets_out", counts.packets_out},
            {"queue_max_packets", counts.queue_max_packets},
            {"queue_mean_packets", counts.queue_mean_packets},
            {"send_errors", counts.send_errors},
            {"translated", counts.translated}};
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
ToJson(const Parameters& p)
{
    json made{{"forward", ToJson(p.forward)},
              {"left", p.left},
              {"loss_protocol", p.loss_protocol == LossProtocol::kUdp ? "udp" : "any"},
              {"overtaking", p.overtaking},
              {"return", ToJson(p.back)},
              {"right", p.right}};
    if (p.outage)
    {
        made["outage"] = {{"start_s", p.outage->start_s}, {"duration_s", p.outage->duration_s}};
    }
    if (p.mtu_fall)
    {
        made["mtu_fall"] = {{"bytes", p.mtu_fall->bytes}, {"start_s", p.mtu_fall->start_s}};
    }
    if (p.rebinding)
    {
        made["rebind"] = {{"what", p.rebinding->address ? "address" : "port"},
                          {"first_s", p.rebinding->first_s},
                          {"every_s", p.rebinding->every_s}};
    }
    return made;
}

json
ToJson(const std::vector<MappingTruth>& mappings)
{
    json made = json::array();
    for (const MappingTruth& mapping : mappings)
    {
        made.push_back({{"inner", mapping.inner},
                        {"outer", mapping.outer},
                        {"packets", mapping.packets},
                        {"time_s", mapping.time_s}});
    }
    return made;
}

json
ToJson(const Truth& truth)
{
    const Parameters& p = truth.parameters;
    return {{"clock_step_s", truth.clock_step_s},
            {"duration_s", truth.duration_s},
            {"first_1rtt_s", truth.first_1rtt_s ? json(*truth.first_1rtt_s) : json()},
            {"forward", ToJson(truth.forward)},
            {"lateness_s", ToJson(truth.lateness)},
            {"ns3", std::to_string(ns3::Version::Major()) + "." + std::to_string(ns3::Version::Minor())},
            {"origin_unix_s", truth.origin_unix_s},
            {"mappings", ToJson(truth.mappings)},
            {"parameters", ToJson(p)},
            {"receive_lateness_s", ToJson(truth.receive_lateness)},
            {"return", ToJson(truth.back)},
            {"schema", kSchema},
            {"seed", p.seed},
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
    const std::string text = ToJson(truth).dump(2) + "\n";
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
