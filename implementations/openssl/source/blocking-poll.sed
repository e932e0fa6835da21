# Upstream's client asks SSL_poll() in a loop for what is ready at once: that takes a CPU from the emulated link, and goes on for
# ever when the connection is lost. Here it waits up to a second, and fails when the connection is closed.
s/poll_timeout\.tv_sec = 0;/poll_timeout.tv_sec = 1;/
/Iterate over our poll array looking for ready SSL/i\
        if (result_count == 0\
            && SSL_get_conn_close_info(ssl, &(SSL_CONN_CLOSE_INFO) { 0 }, sizeof(SSL_CONN_CLOSE_INFO))) {\
            fprintf(stderr, "Connection closed before the files were whole\\n");\
            goto end;\
        }
