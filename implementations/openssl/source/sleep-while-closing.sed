# Client and server call SSL_shutdown() in a loop, three probe time-outs long: 9 s at an RTT of 1.5 s. The client never waits, and a
# blocking call waits for a deadline that has passed (docs/results/upstream/openssl.md). Here both sleep between their calls.
/SSL_shutdown(ssl)) != 1/a\
        OSSL_sleep(10); /* ms */
/while (SSL_shutdown(conn) != 1)/{
    i\
        SSL_set_blocking_mode(conn, 0);
    n
    s/continue;/OSSL_sleep(10); \/* ms *\//
}
