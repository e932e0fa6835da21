#pragma once

#include <cstdint>
#include <thread>

namespace bentpipe
{

/// Accepts and closes TCP connections on all IPv4 and IPv6 addresses when the path is open. Before that, connections are refused.
class Readiness
{
  public:
    /// Binds the port; throws UserError.
    explicit Readiness(uint16_t port);
    ~Readiness();
    Readiness(const Readiness&) = delete;
    Readiness& operator=(const Readiness&) = delete;

    void Open();
    void Close();

  private:
    void Accept();

    int fd_;
    std::thread thread_;
};

}  // namespace bentpipe
