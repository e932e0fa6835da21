#pragma once

#include "ns3/core-module.h"

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include <poll.h>

namespace bentpipe
{

/// Runs ns-3's events when the steady clock reaches their time, and reads file descriptors in between, all in one thread. ns-3's own
/// real-time simulator wants a thread for each socket. A packet then needs two switches between threads, which make a link late on a
/// busy host, and which are expensive in a guest.
class EventLoop : public ns3::SimulatorImpl
{
  public:
    static ns3::TypeId GetTypeId();

    /// Makes a loop that ns-3 uses until `ns3::Simulator::Destroy`.
    static ns3::Ptr<EventLoop> Install();

    /// Calls `on_readable` whenever `fd` is readable, until `Forget`. In the call, `ns3::Simulator::Now()` is the time of the last event:
    /// what the call has read belongs to `RealNow()`, for which it schedules an event.
    void Watch(int fd, std::function<void()> on_readable);
    void Forget(int fd);

    /// Time of the steady clock since the start of `Run`, never earlier than `ns3::Simulator::Now()`.
    ns3::Time RealNow() const;

    void Destroy() override;
    bool IsFinished() const override;
    void Stop() override;
    ns3::EventId Stop(const ns3::Time& delay) override;
    ns3::EventId Schedule(const ns3::Time& delay, ns3::EventImpl* event) override;
    void ScheduleWithContext(uint32_t context, const ns3::Time& delay, ns3::EventImpl* event) override;
    ns3::EventId ScheduleNow(ns3::EventImpl* event) override;
    ns3::EventId ScheduleDestroy(ns3::EventImpl* event) override;
    void Remove(const ns3::EventId& id) override;
    void Cancel(const ns3::EventId& id) override;
    bool IsExpired(const ns3::EventId& id) const override;
    void Run() override;
    ns3::Time Now() const override;
    ns3::Time GetDelayLeft(const ns3::EventId& id) const override;
    ns3::Time GetMaximumSimulationTime() const override;
    void SetScheduler(ns3::ObjectFactory factory) override;
    uint32_t GetSystemId() const override;
    uint32_t GetContext() const override;
    uint64_t GetEventCount() const override;

  protected:
    void DoDispose() override;

  private:
    ns3::EventId Insert(uint32_t context, const ns3::Time& delay, ns3::EventImpl* event);
    bool IsDue() const;
    void Execute();
    void Wait();

    ns3::Ptr<ns3::Scheduler> events_;
    std::vector<ns3::EventId> at_the_end_;
    std::map<int, std::function<void()>> watched_;
    std::vector<pollfd> polled_;  // the descriptors of `watched_`
    ns3::Scheduler::EventKey current_{0, ns3::EventId::RESERVED, ns3::Simulator::NO_CONTEXT};  // of the last event
    uint32_t last_uid_ = ns3::EventId::RESERVED;
    uint64_t executed_ = 0;
    int64_t origin_ns_ = 0;  // of the steady clock at time 0
    bool stopped_ = false;
};

}  // namespace bentpipe
