#include "impairments.h"

#include "loss.h"
#include "nat.h"
#include "packet_edit.h"
#include "packet_facts.h"
#include "transmitter.h"

#include <utility>

#include <netinet/in.h>

namespace bentpipe
{

namespace
{

constexpr uint8_t kNotEct = 0;
constexpr uint8_t kCe = 3;  // RFC 3168 §5
constexpr uint64_t kMinMtu = 100;  // bytes
constexpr uint64_t kMaxMtu = 65'535;
constexpr uint64_t kMaxMarkPackets = 1'000'000;

constexpr PacketEvent kDropOutage{4, "dropped_outage"};
constexpr PacketEvent kDropMtu{5, "dropped_mtu"};
constexpr PacketEvent kCorrupt{6, "corrupted"};  // delivered with a changed byte, unless the packet was also lost
constexpr PacketEvent kHoldBack{8, "held_back"};  // delivered later than its successors
constexpr PacketEvent kGrant{11, "waited_grant"};  // waited a superframe or longer for granted capacity

// Streams of random numbers of a direction. Each kind always has the same stream, so that a seed always affects the same packets.
constexpr int64_t kCorruptionStream = 0;
constexpr int64_t kJitterStream = 1;
constexpr int64_t kReorderingStream = 2;
static_assert(kReorderingStream < kQueueStream && kQueueStream < kImpairmentStreams);

bool
IsUdp(const Passage& passage)
{
    return Describe(passage.packet).protocol == IPPROTO_UDP;
}

ns3::Ptr<ns3::UniformRandomVariable>
MakeRandom(int64_t stream)
{
    const auto random = ns3::CreateObject<ns3::UniformRandomVariable>();
    random->SetStream(stream);
    return random;
}

/// No UDP packet passes for some time, which begins at a given time after the first 1-RTT packet.
class Outage : public Impairment
{
  public:
    Outage(double start_s, double duration_s, const Anchor& anchor)
        : start_s_(start_s),
          end_s_(start_s + duration_s),
          anchor_(anchor)
    {
    }

    static ImpairmentMaker
    Read(Fields&, Fields& both)
    {
        const auto value = both.Find("outage");
        if (!value)
        {
            return {};
        }
        Fields fields(*value);
        const double start = fields.Need("start").Seconds(kMaxTime);
        const double duration = fields.Need("duration").Seconds(kMaxTime);
        fields.RefuseOthers();
        return [=](const Surroundings& at) { return std::make_unique<Outage>(start, duration, at.anchor); };
    }

    void
    Apply(Passage& passage) override
    {
        const auto since = anchor_.SinceFirstOneRtt();
        if (since && *since >= start_s_ && *since < end_s_ && IsUdp(passage))
        {
            passage.dropped = kDropOutage;
        }
    }

  private:
    double start_s_;
    double end_s_;
    const Anchor& anchor_;
};

/// From a given time after the first 1-RTT packet on, longer UDP packets are dropped without a message (RFC 8899 §1.2: a black
/// hole).
class MtuFall : public Impairment
{
  public:
    MtuFall(uint64_t ip_bytes, double start_s, const Anchor& anchor)
        : ip_bytes_(ip_bytes),
          start_s_(start_s),
          anchor_(anchor)
    {
    }

    static ImpairmentMaker
    Read(Fields&, Fields& both)
    {
        const auto value = both.Find("mtu_fall");
        if (!value)
        {
            return {};
        }
        Fields fields(*value);
        const uint64_t size = fields.Need("size").Whole(kMinMtu, kMaxMtu, " of bytes");
        const double start = fields.Need("start").Seconds(kMaxTime);
        fields.RefuseOthers();
        return [=](const Surroundings& at) { return std::make_unique<MtuFall>(size, start, at.anchor); };
    }

    void
    Apply(Passage& passage) override
    {
        const auto since = anchor_.SinceFirstOneRtt();
        if (since && *since >= start_s_ && passage.packet->GetSize() > ip_bytes_ && IsUdp(passage))
        {
            passage.dropped = kDropMtu;
        }
    }

  private:
    uint64_t ip_bytes_;
    double start_s_;
    const Anchor& anchor_;
};

/// ECN: an ECT packet gets CE when at least the given number of packets wait behind it.
class Marking : public Impairment
{
  public:
    Marking(uint64_t packets, ns3::Ptr<ns3::QueueDisc> queue)
        : packets_(packets),
          queue_(queue)
    {
    }

    static ImpairmentMaker
    Read(Fields& direction, Fields&)
    {
        const uint64_t packets = direction.Get("mark_packets", 0u).Whole(0, kMaxMarkPackets, " of packets");
        if (packets == 0)
        {
            return {};
        }
        return [=](const Surroundings& at) { return std::make_unique<Marking>(packets, at.queue); };
    }

    void
    Apply(Passage& passage) override
    {
        if (queue_->GetNPackets() < packets_)
        {
            return;
        }
        auto udp = UdpPacket::Parse(passage.packet);
        if (udp && udp->Ecn() != kNotEct && udp->Ecn() != kCe)
        {
            udp->SetEcn(kCe);
            passage.packet = udp->Build();
            passage.changes.push_back(kMark);
        }
    }

  private:
    uint64_t packets_;
    ns3::Ptr<ns3::QueueDisc> queue_;
};

/// One byte of the payload changes, the UDP checksum is corrected, and the packet is delivered.
class Corruption : public Impairment
{
  public:
    Corruption(double probability, uint32_t burst, Flows& flows, int64_t stream)
        : probability_(probability),
          burst_(burst),
          states_(flows, stream)
    {
    }

    static ImpairmentMaker
    Read(Fields& direction, Fields&)
    {
        const double probability = direction.Get("corruption", 0.0).Fraction();
        const uint32_t burst = ReadBurst(direction);
        if (probability == 0.0)
        {
            return {};
        }
        return [=](const Surroundings& at) {
            return std::make_unique<Corruption>(probability, burst, at.flows, at.first_stream + kCorruptionStream);
        };
    }

    void
    Apply(Passage& passage) override
    {
        auto udp = UdpPacket::Parse(passage.packet);
        if (!udp || udp->PayloadBytes() == 0)
        {
            return;
        }
        State& state = states_.Of(passage.packet);
        // Three random numbers are drawn for every packet, so that a seed's pattern doesn't depend on earlier corruptions.
        const bool hit = state.random->GetValue(0.0, 1.0) < probability_;
        const auto offset = state.random->GetInteger(0, static_cast<uint32_t>(udp->PayloadBytes() - 1));
        const auto mask = static_cast<uint8_t>(state.random->GetInteger(1, 255));
        if (!hit || (burst_ > 0 && state.run >= burst_))
        {
            state.run = 0;
            return;
        }
        ++state.run;
        udp->Corrupt(offset, mask);
        passage.packet = udp->Build();
        passage.changes.push_back(kCorrupt);
    }

  private:
    struct State
    {
        explicit State(int64_t stream)
            : random(MakeRandom(stream))
        {
        }

        ns3::Ptr<ns3::UniformRandomVariable> random;
        uint32_t run = 0;  // corruptions in a row
    };

    double probability_;
    uint32_t burst_;
    PerFlow<State> states_;
};

/// Each packet gets a random additional delay (uniform). The packets stay in order unless they may overtake each other.
class Jitter : public Impairment
{
  public:
    Jitter(double seconds, bool overtaking, int64_t stream)
        : seconds_(seconds),
          overtaking_(overtaking),
          random_(MakeRandom(stream))
    {
    }

    static ImpairmentMaker
    Read(Fields& direction, Fields& both)
    {
        const double seconds = direction.Get("jitter", 0.0).Seconds(kMaxDelay);
        const bool overtaking = both.Get("overtaking", false).Flag();
        if (seconds == 0.0)
        {
            return {};
        }
        return [=](const Surroundings& at) {
            return std::make_unique<Jitter>(seconds, overtaking, at.first_stream + kJitterStream);
        };
    }

    void
    Apply(Passage& passage) override
    {
        passage.delay += ns3::Seconds(random_->GetValue(0.0, seconds_));
        passage.apart = passage.apart || overtaking_;
    }

  private:
    double seconds_;
    bool overtaking_;
    ns3::Ptr<ns3::UniformRandomVariable> random_;
};

/// Some packets are held back, and other packets overtake them.
class Reordering : public Impairment
{
  public:
    Reordering(double probability, double seconds, int64_t stream)
        : probability_(probability),
          seconds_(seconds),
          random_(MakeRandom(stream))
    {
    }

    static ImpairmentMaker
    Read(Fields& direction, Fields&)
    {
        const double probability = direction.Get("reorder", 0.0).Fraction();
        const double seconds = direction.Get("reorder_delay", 0.0).Seconds(kMaxDelay);
        if (probability == 0.0)
        {
            return {};
        }
        return [=](const Surroundings& at) {
            return std::make_unique<Reordering>(probability, seconds, at.first_stream + kReorderingStream);
        };
    }

    void
    Apply(Passage& passage) override
    {
        if (IsUdp(passage) && random_->GetValue(0.0, 1.0) < probability_)
        {
            passage.delay += ns3::Seconds(seconds_);
            passage.apart = true;
            passage.changes.push_back(kHoldBack);
        }
    }

  private:
    double probability_;
    double seconds_;
    ns3::Ptr<ns3::UniformRandomVariable> random_;
};

/// Records the packets that waited for a grant of capacity. The transmitter lets them wait.
class GrantRecord : public Impairment
{
  public:
    explicit GrantRecord(const Transmitter& transmitter)
        : transmitter_(transmitter)
    {
    }

    static ImpairmentMaker
    Read(Fields& direction, Fields&)
    {
        if (!direction.Find("dama"))
        {
            return {};
        }
        return [](const Surroundings& at) { return std::make_unique<GrantRecord>(at.transmitter); };
    }

    void
    Apply(Passage& passage) override
    {
        if (transmitter_.WaitedForGrant())
        {
            passage.changes.push_back(kGrant);
        }
    }

  private:
    const Transmitter& transmitter_;
};

/// A kind of impairment: how it is read from the document (empty: the document doesn't have it), and the event that it causes, for
/// the counters.
struct Kind
{
    ImpairmentMaker (*read)(Fields& direction, Fields& both);
    const PacketEvent* event;  // null: its effects are not counted
};

// The kinds in the order in which they act.
constexpr Kind kKinds[] = {
    {GrantRecord::Read, &kGrant},
    {Outage::Read, &kDropOutage},
    {MtuFall::Read, &kDropMtu},
    {Marking::Read, &kMark},
    {Corruption::Read, &kCorrupt},
    {Jitter::Read, nullptr},
    {Reordering::Read, &kHoldBack},
};

}  // namespace

std::vector<ImpairmentMaker>
ReadImpairments(Fields& direction, Fields& both)
{
    std::vector<ImpairmentMaker> makers;
    for (const Kind& kind : kKinds)
    {
        if (ImpairmentMaker maker = kind.read(direction, both))
        {
            makers.push_back(std::move(maker));
        }
    }
    return makers;
}

std::vector<PacketEvent>
ImpairmentEvents()
{
    std::vector<PacketEvent> events{kTranslate, kDropHandover};
    for (const Kind& kind : kKinds)
    {
        if (kind.event != nullptr)
        {
            events.push_back(*kind.event);
        }
    }
    return events;
}

}  // namespace bentpipe
