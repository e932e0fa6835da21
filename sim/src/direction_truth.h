#pragma once

#include "impairment.h"
#include "packet_facts.h"
#include "packet_log.h"
#include "transmitter.h"

#include "ns3/core-module.h"
#include "ns3/queue-disc.h"

#include <cstdint>
#include <map>
#include <string>

namespace bentpipe
{

/// Totals of one direction.
struct DirectionCounts
{
    uint64_t packets_in = 0;  ///< packets that reached the queue, accepted or not
    uint64_t bytes_in = 0;    ///< IP bytes of these packets
    uint64_t packets_out = 0;
    uint64_t bytes_out = 0;
    uint64_t dropped_queue = 0;
    uint64_t dropped_loss = 0;
    std::map<std::string, uint64_t> impaired;  ///< name of an event's counter → number of packets
    uint64_t send_errors = 0;  ///< packets that the kernel refused at the far interface
    uint64_t in_flight = 0;    ///< packets that were waiting, being transmitted or propagating when the link stopped
    uint32_t queue_max_packets = 0;
    double queue_mean_packets = 0.0;  ///< weighted by time
    double busy_s = 0.0;              ///< time in which the transmitter was sending
};

/// Watches one direction of the path and keeps its totals and its part of the packet log.
class DirectionTruth
{
  public:
    /// `log` may be null. The object must outlive the simulation.
    DirectionTruth(Direction direction, ns3::Ptr<ns3::QueueDisc> queue, ns3::Ptr<Transmitter> transmitter, PacketLog* log);
    DirectionTruth(const DirectionTruth&) = delete;
    DirectionTruth& operator=(const DirectionTruth&) = delete;

    /// Call it at the end of a packet's transmission, after the impairments were applied.
    void OnTransmitted(const Passage& passage);
    /// A packet was lost by the loss model. `handover`: while a handover went on.
    void OnLost(ns3::Ptr<const ns3::Packet> packet, bool handover);
    void OnSent(const PacketFacts& facts, ns3::Time lateness, bool taken);

    /// The totals from time 0 until now.
    DirectionCounts Counts() const;

  private:
    void OnEnqueue(ns3::Ptr<const ns3::QueueDiscItem> item);
    void OnDequeue(ns3::Ptr<const ns3::QueueDiscItem> item);
    void OnQueueRefusal(ns3::Ptr<const ns3::QueueDiscItem> item, const char* reason);
    void OnQueueDrop(ns3::Ptr<const ns3::QueueDiscItem> item, const char* reason);
    void OnMark(ns3::Ptr<const ns3::QueueDiscItem> item, const char* reason);
    void AdvanceQueue();
    void Log(const PacketEvent& event, const PacketFacts& facts, uint32_t queue_packets, ns3::Time lateness);

    Direction direction_;
    ns3::Ptr<ns3::QueueDisc> queue_;
    ns3::Ptr<Transmitter> transmitter_;
    PacketLog* log_;
    DirectionCounts counts_;
    uint32_t queue_packets_ = 0;         // packets that have been waiting since queue_changed_
    double queue_packet_seconds_ = 0.0;  // integral of the queue's length until queue_changed_
    ns3::Time queue_changed_;
    uint64_t propagating_ = 0;
};

}  // namespace bentpipe
