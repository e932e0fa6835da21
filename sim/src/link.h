#pragma once

#include "anchor.h"
#include "channel.h"
#include "event_loop.h"
#include "flows.h"
#include "host.h"
#include "impairment.h"
#include "loss.h"
#include "nat.h"
#include "parameters.h"
#include "raw_device.h"
#include "transmitter.h"
#include "truth.h"

#include <functional>
#include <memory>
#include <vector>

namespace bentpipe
{

/// The path consists of two nodes. Each node is a bridge between a raw socket and one end of an asymmetric channel.
///
///     left interface  RawDevice =bridge= SimpleNetDevice ---return-->  SimpleNetDevice =bridge= RawDevice  right interface
///                                                        <--forward--
///
/// Only impairments change frames. The sending device is a Transmitter, with the queue and the data rate; the channel has the delay and the
/// impairments, and the receiving SimpleNetDevice has the loss.
class Link
{
  public:
    /// Opens the sockets; throws UserError. `log` may be null.
    Link(ns3::Ptr<EventLoop> loop, const Parameters& parameters, PacketLog* log);
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    /// Carries packets until RequestStop. `on_open` is called once both sockets forward.
    void Run(std::function<void()> on_open);

    /// Ends Run soon.
    void RequestStop();

    /// The truth about the run. Call it after Run.
    Truth Summary() const;

  private:
    struct Side
    {
        ns3::Ptr<ns3::Node> node;
        ns3::Ptr<RawDevice> raw;
        ns3::Ptr<Transmitter> device;
        ns3::Ptr<ns3::QueueDisc> queue;
        std::unique_ptr<DirectionTruth> truth;  // counts the packets that enter here
        std::vector<std::unique_ptr<Impairment>> impairments;  // affect the same packets, in this order
        LossModel loss;
        bool handover = false;  // the losses of now belong to a handover
        ns3::Time changes_began;  // time 0 of the changes
    };

    void BuildSide(Side& side, const End& about, const DirectionParameters& outgoing, Direction direction, PacketLog* log);
    void Connect(Side& from, Side& to, const DirectionParameters& direction, int64_t random_stream);
    void Impair(Side& from, const DirectionParameters& direction, int64_t first_stream);
    void Pass(Side& from, Passage& passage);
    void Follow(Side& from, const std::vector<Change>& changes, size_t next);
    void Apply(Side& from, const Change& change);
    void OnStart(PacketLog* log);
    void LookForFlood();
    void OnStop();

    ns3::Ptr<EventLoop> loop_;
    Truth truth_;
    Anchor anchor_;
    Flows flows_;
    std::unique_ptr<Nat> nat_;
    Side left_;
    Side right_;
    ns3::Ptr<AsymmetricChannel> channel_;
    std::function<void()> on_open_;
    int64_t wall_minus_steady_ns_ = 0;
};

}  // namespace bentpipe
