#pragma once

#include "ns3/core-module.h"
#include "ns3/queue-disc.h"

#include <cstdint>

namespace bentpipe
{

/// The dual-queue coupled AQM of RFC 9332 with PI2 for the classic queue (appendix A) and a ramp for the L4S queue. ns-3 has none.
///
/// ECT(1) and CE packets use the L4S queue. The two queues share the limit of packets. A weighted scheduler gives the classic queue at
/// least a tenth of the link, as Linux does.
class DualQueue : public ns3::QueueDisc
{
  public:
    static ns3::TypeId GetTypeId();
    DualQueue();

    /// The stream of the random numbers that choose the packets.
    void AssignStream(int64_t stream);

  private:
    bool DoEnqueue(ns3::Ptr<ns3::QueueDiscItem> item) override;
    ns3::Ptr<ns3::QueueDiscItem> DoDequeue() override;
    bool CheckConfig() override;
    void InitializeParams() override;

    void Update();
    double Sojourn(size_t queue) const;  // of the packet at the head, s; 0 for an empty queue
    bool Chosen(double probability);

    ns3::Ptr<ns3::UniformRandomVariable> random_;
    double base_ = 0.0;      // p' of RFC 9332: the square root of the classic probability
    double previous_ = 0.0;  // queueing delay at the last update, s
    int64_t credit_ = 0;     // of the classic queue, in weighted bytes
    ns3::Time next_update_;
};

}  // namespace bentpipe
